"""What a run writes down: its phase, its measures, its failure."""
