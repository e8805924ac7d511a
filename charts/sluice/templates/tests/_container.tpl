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
