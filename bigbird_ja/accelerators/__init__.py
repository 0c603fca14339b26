"""TPUs: chips and slices, their prices, the services that rent them, and measured rates."""

from bigbird_ja.accelerators.chips import CHIPS as CHIPS
from bigbird_ja.accelerators.chips import USUAL as USUAL
from bigbird_ja.accelerators.chips import find as find
from bigbird_ja.accelerators.prices import USUAL_ZONES as USUAL_ZONES
from bigbird_ja.accelerators.prices import Prices as Prices
from bigbird_ja.accelerators.prices import region_of as region_of
from bigbird_ja.accelerators.rentals import Rental as Rental
