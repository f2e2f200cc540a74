"""What runs on the user's own servers: `launcher` starts them, `doctor` checks them."""
