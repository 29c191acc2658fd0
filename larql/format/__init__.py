"""What is stored: containers, encodings and the checkpoints they are compiled from."""
