"""Programs that run on a rented machine, and the metadata that starts them."""
