"""`train` itself: the walk from the documents to the outcome."""
