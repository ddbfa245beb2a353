"""In a rank: turns torch's Flight Recorder into a file on request, while the main thread waits in a collective."""
