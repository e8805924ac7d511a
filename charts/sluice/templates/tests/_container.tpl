{{/* What the containers of the test pod have in common. */}}

{{- define "sluice.testContainer" -}}
image: {{ include "sluice.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
resources:
  {{- toYaml .Values.tests.resources | nindent 2 }}
securityContext:
  {{- toYaml .Values.loader.securityContext | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  - name: store
    mountPath: /store
    readOnly: true
  - name: models
    mountPath: /models
{{- end -}}

{{/* The model that the volume test mounts: the one that is named, else the smallest whose size is known, else the first. */}}
{{- define "sluice.testModel" -}}
{{- $found := .Values.tests.volume.model -}}
{{- $least := 0 -}}
{{- range include "sluice.nodeModels" . | fromJsonArray -}}
{{- if not (include "sluice.poolDevice" (dict "root" $ "name" .)) -}}
{{- $bytes := 0 -}}
{{- with (get $.Values.models . | default dict).size -}}{{- $bytes = include "sluice.bytes" . | int64 -}}{{- end -}}
{{- if and (not $.Values.tests.volume.model) (or (not $found) (and $bytes (or (not $least) (lt $bytes $least)))) -}}
{{- $found = . -}}
{{- $least = $bytes -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}
