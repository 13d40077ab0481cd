"""Code that runs in a lane's process: trials, turns, measurements. It imports nothing of the driver's side."""
