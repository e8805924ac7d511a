{{/*
Names, labels and images. Every template of this chart takes its names from here.

Those that other charts include are told in docs/helm.md; they take a dict whose `root` is this chart's context:
`$` in this chart, `$.Subcharts.sluice` in a chart that depends on it.
*/}}

{{- define "sluice.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters, so that what is put behind it stays within the 63 of a label and the 52 of a CronJob. */}}
{{- define "sluice.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := printf "%s-%s" .Release.Name $name -}}
{{- if .Values.fullnameOverride -}}
{{- $full = .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- $full = .Release.Name -}}
{{- end -}}
{{- $full | trunc 40 | trimSuffix "-" | trimSuffix "." -}}
{{- end -}}

{{- define "sluice.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- define "sluice.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "sluice.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "sluice.specsName" -}}
{{- printf "%s-specs" (include "sluice.fullname" .) -}}
{{- end -}}

{{/* Labels that selectors use: they never change, because selectors cannot. */}}
{{- define "sluice.selectorLabels" -}}
app.kubernetes.io/name: {{ include "sluice.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* dict "root" $ "component" NAME */}}
{{- define "sluice.labels" -}}
{{- $root := .root -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "sluice.selectorLabels" $root }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
app.kubernetes.io/part-of: sluice
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The metadata of an object. dict "root" $ "component" NAME "name" NAME ["annotations" MAP] ["labels" MAP] */}}
{{- define "sluice.metadata" -}}
name: {{ .name | quote }}
namespace: {{ include "sluice.namespace" .root | quote }}
labels:
  {{- include "sluice.labels" . | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (default dict .annotations) (default dict .root.Values.commonAnnotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* registry/repository:tag, or @digest in the tag's place. Every image of the chart comes from here. */}}
{{- define "sluice.image" -}}
{{- $global := default dict .Values.global -}}
{{- $registry := coalesce (get $global "imageRegistry") .Values.image.registry -}}
{{- $name := .Values.image.repository -}}
{{- if $registry -}}
{{- $name = printf "%s/%s" (trimSuffix "/" $registry) $name -}}
{{- end -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $name .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .Chart.AppVersion .Values.image.tag | toString) -}}
{{- end -}}
{{- end -}}

{{/* A list: the global pull secrets and the chart's. */}}
{{- define "sluice.imagePullSecrets" -}}
{{- $global := default dict .Values.global -}}
{{- concat (default list (get $global "imagePullSecrets")) (default list .Values.imagePullSecrets) | uniq | toYaml -}}
{{- end -}}

{{/* A Kubernetes quantity of bytes as a number: 1.5Gi is 1610612736. */}}
{{- define "sluice.bytes" -}}
{{- $text := toString . -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- $number := float64 (trimSuffix $unit $text) -}}
{{- $factors := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 -}}
{{- mulf $number (float64 (get $factors $unit)) | ceil | int64 -}}
{{- end -}}

{{/* Bytes as whole MiB, rounded up: 1610612736 is 1536Mi. */}}
{{- define "sluice.mebibytes" -}}
{{- divf (float64 .) 1048576.0 | ceil | int64 -}}Mi
{{- end -}}
