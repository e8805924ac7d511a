{{/* The spec of the prefetch Job, which the CronJob has too. */}}

{{- define "sluice.prefetchVolume" -}}
{{- if .Values.prefetch.volume -}}
{{- toYaml .Values.prefetch.volume -}}
{{- else -}}
persistentVolumeClaim:
  claimName: {{ include "sluice.fullname" . }}-models
{{- end -}}
{{- end -}}

{{- define "sluice.prefetchJobSpec" -}}
{{- $prefetch := .Values.prefetch -}}
{{- $load := dict "root" . "models" (include "sluice.prefetchModels" . | fromJsonArray) "specFile" "prefetch.yaml"
    "resources" $prefetch.resources "volume" (include "sluice.prefetchVolume" . | fromYaml) -}}
{{- $pod := dict "root" . "component" "prefetch" "pod" $prefetch.pod -}}
{{- if include "sluice.scraped" . -}}
{{- $_ := set $load "port" .Values.sidecar.port -}}
{{- $_ := set $pod "labels" (include "sluice.podLabels" . | fromYaml) -}}
{{- end -}}
backoffLimit: {{ int $prefetch.backoffLimit }}
{{- with $prefetch.activeDeadlineSeconds }}
activeDeadlineSeconds: {{ int . }}
{{- end }}
{{- if not (kindIs "invalid" $prefetch.ttlSecondsAfterFinished) }}
ttlSecondsAfterFinished: {{ int $prefetch.ttlSecondsAfterFinished }}
{{- end }}
podFailurePolicy:
  rules:
    # A pod that was pushed off its node is not a failure of the load.
    - action: Ignore
      onPodConditions:
        - type: DisruptionTarget
          status: "True"
    {{- with $prefetch.finalExitCodes }}
    - action: FailJob
      onExitCodes:
        containerName: sluice-load
        operator: In
        values: {{ . | toJson }}
    {{- end }}
template:
  metadata:
    {{- include "sluice.podMetadata" $pod | nindent 4 }}
  spec:
    {{- include "sluice.podSpec" $pod | nindent 4 }}
    restartPolicy: Never
    {{- with $prefetch.extraInitContainers }}
    initContainers:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    containers:
      {{- include "sluice.initContainer" $load | nindent 6 }}
      {{- with $prefetch.extraContainers }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    volumes:
      {{- include "sluice.volumes" $load | nindent 6 }}
{{- end -}}
