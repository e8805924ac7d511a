{{/* What the endpoints of both monitors have in common; the context is one of them. */}}

{{- define "sluice.endpoint" -}}
path: /metrics
{{- with .interval }}
interval: {{ . }}
{{- end }}
{{- with .scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
{{- with .relabelings }}
relabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .extraEndpoint }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Is there something that scrapes? Then Jobs listen too. "true" or "". */}}
{{- define "sluice.scraped" -}}
{{- if or .Values.metrics.podMonitor.enabled .Values.metrics.serviceMonitor.enabled }}true{{ end -}}
{{- end -}}

{{/* The groups of files/rules.yaml with the values applied, as a JSON list. */}}
{{- define "sluice.ruleGroups" -}}
{{- $values := .Values.metrics.rules -}}
{{- $groups := list -}}
{{- range (.Files.Get "files/rules.yaml" | fromYaml).groups -}}
{{- if or $values.kubeStateMetrics (ne .name "sluice-kubernetes") -}}
{{- $rules := list -}}
{{- range .rules -}}
{{- if not (has .alert $values.disabled) -}}
{{- $_ := set . "labels" (mergeOverwrite .labels $values.alertLabels) -}}
{{- if $values.docsUrl -}}
{{- $url := printf "%s/%s" (trimSuffix "/" $values.docsUrl) (trimPrefix "docs/" .annotations.runbook_url) -}}
{{- $_ := set .annotations "runbook_url" $url -}}
{{- end -}}
{{- $rules = append $rules . -}}
{{- end -}}
{{- end -}}
{{- if $rules -}}
{{- $groups = append $groups (dict "name" .name "rules" $rules) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $groups | toJson -}}
{{- end -}}
