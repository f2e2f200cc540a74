"""
The APIs of OpenAI and Anthropic: what requests may contain, what runs they ask for, and how runs
are answered.
"""
