#!/bin/sh
# Ask the model $1 for what each line of problems.jsonl says, with GuideLLM; $2 is the folder of its tokenizer. What
# follows goes to the backend, such as ",request_format=/v1/responses".
exec guidellm run --disable-console \
  --backend "kind=openai_http,target=${OPENAI_BASE_URL%/v1},model=$1,api_key=$OPENAI_API_KEY$3" \
  --tokenizer "kind=huggingface_auto,model=$2" --data kind=json_file,path=problems.jsonl \
  --profile kind=concurrent,streams=4 --constraint "kind=max_requests,count=$(wc -l < problems.jsonl)" \
  --output kind=json,path=report.json
