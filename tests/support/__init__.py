"""What tests share: the simulated disk, the model, servers as processes."""
