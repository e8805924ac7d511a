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

{{/*
The groups of files/rules.yaml with the values applied, as a JSON list: thresholds, the names of this release's Jobs and DaemonSet, the
name of its image.
*/}}
{{- define "sluice.ruleGroups" -}}
{{- $values := .Values.metrics.rules -}}
{{- $groups := list -}}
{{- $jobs := printf "namespace=\"%s\", job_name=~\"%s-prefetch-.*\"" (include "sluice.namespace" .) (include "sluice.fullname" .) -}}
{{- $cronjobs := printf "namespace=\"%s\", cronjob=\"%s-prefetch\"" (include "sluice.namespace" .) (include "sluice.fullname" .) -}}
{{- $daemonset := printf "namespace=\"%s\", daemonset=\"%s\"" (include "sluice.namespace" .) (include "sluice.nodeName" .) -}}
{{- $image := printf "/)?%s[:@]" (base .Values.image.repository | replace "." "[.]") -}}
{{- range (.Files.Get "files/rules.yaml" | fromYaml).groups -}}
{{- if or $values.kubeStateMetrics (ne .name "sluice-kubernetes") -}}
{{- $rules := list -}}
{{- range .rules -}}
{{- if not (has .alert $values.disabled) -}}
{{- $expr := .expr | replace "job_name=~\".*sluice.*-prefetch-.*\"" $jobs | replace "cronjob=~\".*sluice.*-prefetch\"" $cronjobs | replace "daemonset=~\".*sluice.*-node\"" $daemonset | replace "/)?sluice[:@]" $image -}}
{{- if hasKey $values.thresholds .alert -}}
{{- $expr = regexReplaceAll "> [0-9.]+\\s*$" $expr (printf "> %v" (get $values.thresholds .alert)) -}}
{{- end -}}
{{- $_ := set . "expr" $expr -}}
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
