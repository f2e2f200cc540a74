#!/bin/sh
# Send the body $2 to $1 of the API, with the key $OPENAI_API_KEY, and print what comes as it comes; then the status.
exec curl --no-buffer --silent --show-error --max-time 120 --write-out '\n%{http_code} %{content_type}\n' \
  "$OPENAI_BASE_URL$1" -H "Authorization: Bearer $OPENAI_API_KEY" -H 'Content-Type: application/json' --data "$2"
