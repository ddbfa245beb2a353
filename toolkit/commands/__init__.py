"""What the commands of `toolkit` do for people, one folder a group of commands."""
