"""Tests against real vLLM servers."""
