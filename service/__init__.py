"""
The HTTP service: one OpenAI-compatible endpoint in front of both models.

Only `settings` may be imported without FastAPI, which comes with the extra ``serve``.
"""
