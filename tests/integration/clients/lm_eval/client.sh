#!/bin/sh
# Evaluate the model $1 on a task of one's own and on the harness's gsm8k. The key is taken from OPENAI_API_KEY; the
# base URL is the whole path, and a reasoning model needs more than the 256 tokens that the harness allows by itself.
exec lm_eval run \
  --model local-chat-completions \
  --model_args "model=$1,base_url=$OPENAI_BASE_URL/chat/completions,num_concurrent=4,max_gen_toks=1024" \
  --tasks miniature gsm8k --include_path "$(dirname "$0")" \
  --apply_chat_template --log_samples --output_path results
