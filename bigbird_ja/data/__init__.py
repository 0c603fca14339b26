"""From text to batches: packing, masking, records, manifest, order, pipeline."""
