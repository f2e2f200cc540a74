"""
Evaluates a model on a task of one's own and on the harness's gsm8k, as ``lm_eval run`` does.

The command reads the files of all 14,000 tasks that the harness has before it begins; this reads
those of two.
"""

import json
import os
import sys
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

(MODEL,) = sys.argv[1:]
OWN = Path(__file__).parent
GSM8K = Path(lm_eval.__file__).parent / "tasks" / "gsm8k"

# The key is taken from OPENAI_API_KEY; the base URL is the whole path, and a reasoning model needs
# more than the 256 tokens that the harness allows by itself.
if __name__ == "__main__":
    results = lm_eval.simple_evaluate(
        model="local-chat-completions",
        model_args={
            "model": MODEL,
            "base_url": f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
            "num_concurrent": 4,
            "max_gen_toks": 1024,
        },
        tasks=["miniature", "gsm8k"],
        task_manager=TaskManager(include_path=[OWN, GSM8K], include_defaults=False),
        apply_chat_template=True,
    )
    targets = [sample["target"] for sample in results["samples"]["miniature"]]
    print(json.dumps({"scores": results["results"], "targets": targets}))
