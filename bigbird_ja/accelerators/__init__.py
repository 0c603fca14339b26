"""Facts about what can be rented: chips, slices, zones, prices. No network, no clock."""
