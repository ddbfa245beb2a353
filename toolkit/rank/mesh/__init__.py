"""What the libraries that scripts import share: a rank's position, and connections between ranks."""
