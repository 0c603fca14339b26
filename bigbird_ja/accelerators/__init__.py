"""TPUs: chips and slices, their prices, the services that rent them, and measured rates."""
