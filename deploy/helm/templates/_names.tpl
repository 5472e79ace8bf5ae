{{- define "plimsoll.name" -}}
{{- printf "%s" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "plimsoll.labels" -}}
app.kubernetes.io/name: plimsoll
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end -}}

{{- define "plimsoll.selector" -}}
app.kubernetes.io/name: plimsoll
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "plimsoll.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{- define "plimsoll.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end -}}

{{- define "plimsoll.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "plimsoll.apiKeySecret" -}}
{{- default (printf "%s-api-key" (include "plimsoll.name" .)) .Values.apiKey.existingSecret -}}
{{- end -}}

{{- define "plimsoll.preparation" -}}
image: {{ include "plimsoll.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
resources:
  requests:
    cpu: 100m
    memory: 128Mi
  limits:
    memory: 512Mi
securityContext:
  {{- include "plimsoll.securityContext" . | nindent 2 }}
volumeMounts:
  - name: scratch
    mountPath: /tmp
{{- end -}}

{{- define "plimsoll.preparationDatabase" -}}
- name: DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ required "database.existingSecret: name a Secret that holds the database's URL" .Values.database.existingSecret | quote }}
      key: {{ default .Values.database.key .Values.database.migrationKey | quote }}
{{- end -}}
