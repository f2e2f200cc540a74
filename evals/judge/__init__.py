"""What the opinion of a large model is worth as a judge of steps, measured without labels."""
