"""TPUs: chips and slices, their prices, the services that rent them, and measured rates."""

from bigbird_ja.accelerators.chips import CHIPS as CHIPS
from bigbird_ja.accelerators.chips import MEGACORE as MEGACORE
from bigbird_ja.accelerators.chips import USUAL as USUAL
from bigbird_ja.accelerators.chips import Accelerator as Accelerator
from bigbird_ja.accelerators.chips import Chip as Chip
from bigbird_ja.accelerators.chips import find as find
from bigbird_ja.accelerators.chips import generation_of as generation_of
from bigbird_ja.accelerators.chips import launch_type as launch_type
from bigbird_ja.accelerators.chips import link_seconds as link_seconds
from bigbird_ja.accelerators.chips import of_topology as of_topology
from bigbird_ja.accelerators.measured import COUNTED as COUNTED
from bigbird_ja.accelerators.prices import PRICINGS as PRICINGS
from bigbird_ja.accelerators.prices import USUAL_ZONES as USUAL_ZONES
from bigbird_ja.accelerators.prices import Prices as Prices
from bigbird_ja.accelerators.prices import load_prices as load_prices
from bigbird_ja.accelerators.prices import region_of as region_of
from bigbird_ja.accelerators.rentals import Rental as Rental
