{{- define "stepspec.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "stepspec.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "stepspec.labels" -}}
{{ include "stepspec.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: stepspec
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "stepspec.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "stepspec.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "stepspec.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{- /* The base URLs of a role, with commas between them: those that are given, or one for each deployed replica. */}}
{{- define "stepspec.urls" -}}
{{- $model := get .root.Values .role }}
{{- if $model.url }}
{{- $model.url }}
{{- else }}
{{- $name := printf "%s-%s" (include "stepspec.fullname" .root) .role }}
{{- $urls := list }}
{{- range $i := until (int $model.replicaCount) }}
{{- $urls = append $urls (printf "http://%s-%d.%s.%s.svc:8000/v1" $name $i $name $.root.Release.Namespace) }}
{{- end }}
{{- join "," $urls }}
{{- end }}
{{- end }}

{{- define "stepspec.healthUrls" -}}
{{- $urls := list }}
{{- range splitList "," (include "stepspec.urls" .) }}
{{- $urls = append $urls (printf "%s/health" (. | trim | trimSuffix "/" | trimSuffix "/v1")) }}
{{- end }}
{{- join "," $urls }}
{{- end }}

{{- /* A variable from a secret, if there is one. */}}
{{- define "stepspec.secretVariable" -}}
{{- if .secret.secretName }}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret.secretName | quote }}
      key: {{ .secret.secretKey | quote }}
{{- end }}
{{- end }}

{{- /* Invalid values are refused before anything is installed. */}}
{{- define "stepspec.check" -}}
{{- if not (or .Values.keys.secretName .Values.insecure) }}
{{- fail "nobody could be kept out: name a secret with the service's API keys in keys.secretName, or set insecure=true" }}
{{- end }}
{{- if regexMatch `(?m)^[^#"'\n]*\b(api_key|keys?)\s*=` .Values.config }}
{{- fail "everybody who reads the ConfigMap would see a key in config: name its secret in keys, apiKey or envFromSecret" }}
{{- end }}
{{- if and .Values.autoscaling.enabled .Values.keda.enabled }}
{{- fail "two would scale the same pods: enable autoscaling or keda, not both" }}
{{- end }}
{{- $deployed := not (and .Values.small.url .Values.large.url) }}
{{- if and $deployed .Values.serviceMonitor.enabled .Values.networkPolicy.enabled (not .Values.networkPolicy.metricsFrom) }}
{{- fail "Prometheus could not reach the models: name where it runs in networkPolicy.metricsFrom, e.g. {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}" }}
{{- end }}
{{- end }}
