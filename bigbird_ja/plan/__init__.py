"""What a run takes and costs, before anything is rented. Arithmetic and its presentation."""
