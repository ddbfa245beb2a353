"""The commands of `toolkit` for people, one folder a group of commands."""
