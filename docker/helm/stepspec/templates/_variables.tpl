{{- /* The settings of the service that the chart knows, as environment variables. */}}
{{- define "stepspec.variables" -}}
- name: STEPSPEC_CONFIG
  value: /etc/stepspec/stepspec.toml
- name: STEPSPEC_SERVICE__DRAIN_SECONDS
  value: {{ .Values.drainSeconds | quote }}
{{- include "stepspec.secretVariable" (dict "name" "STEPSPEC_SERVICE__KEYS" "secret" .Values.keys) }}
{{- range $role := list "small" "large" "critic" }}
{{- $model := get $.Values $role }}
{{- if or $model.url (ne $role "critic") }}
- name: STEPSPEC_{{ upper $role }}__URL
  value: {{ include "stepspec.urls" (dict "root" $ "role" $role) | quote }}
{{- with $model.servedName }}
- name: STEPSPEC_{{ upper $role }}__MODEL
  value: {{ . | quote }}
{{- end }}
{{- include "stepspec.secretVariable" (dict "name" (printf "STEPSPEC_%s__API_KEY" (upper $role)) "secret" $model.apiKey) }}
{{- end }}
{{- end }}
{{- with .Values.tracing.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- end }}
