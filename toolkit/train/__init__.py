"""`train` itself: its steps from the job's documents to the outcome."""
