"""Reasoning-step-level speculation over two vLLM endpoints."""
