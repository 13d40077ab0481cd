"""What runs in a lane's process: its trials, their turns, their measurements. It needs nothing of the driver's side."""
