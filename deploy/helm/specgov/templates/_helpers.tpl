{{/* Names and labels. */}}
{{- define "specgov.name" -}}
{{- if contains "specgov" .Release.Name -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-specgov" .Release.Name | trunc 50 | trimSuffix "-" }}{{- end -}}
{{- end }}

{{- define "specgov.labels" -}}
app.kubernetes.io/name: specgov
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "specgov.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "specgov.secret" -}}
{{- if .Values.token.value }}{{ include "specgov.name" . }}-token{{ else }}{{ required "token.existingSecret or token.value must be set: without a token everybody could override" .Values.token.existingSecret }}{{ end }}
{{- end }}

{{- define "specgov.security" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* For your own pod template: the label that monitoring and network policy select by. */}}
{{- define "specgov.podLabels" -}}
specgov.dev/governed: "true"
{{- end }}

{{/* For your own pod template: init containers, the native sidecar among them. */}}
{{- define "specgov.initContainers" -}}
# Puts the hook where the stock SGLang image finds it, and ends at once.
- name: specgov-hooks
  image: {{ include "specgov.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [export-hooks, /opt/specgov-hooks]
  volumeMounts:
    - {name: specgov-hooks, mountPath: /opt/specgov-hooks}
  resources:
    requests: {cpu: 10m, memory: 64Mi}
    limits: {memory: 256Mi}
  securityContext:
    {{- include "specgov.security" . | nindent 4 }}
- name: specgov
  image: {{ include "specgov.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  args: [run]
  env:
    - {name: SPECGOV_ENGINE__URL, value: "http://127.0.0.1:{{ .Values.engine.port }}"}
    - {name: SPECGOV_API__HOST, value: 0.0.0.0}
    - {name: SPECGOV_API__PORT, value: {{ .Values.sidecar.port | quote }}}
    - {name: SPECGOV_API__TOKEN_FILE, value: /etc/specgov/secret/token}
    # For `kubectl exec ... specgov override`.
    - {name: SPECGOV_TOKEN_FILE, value: /etc/specgov/secret/token}
    - {name: SPECGOV_URL, value: "http://127.0.0.1:{{ .Values.sidecar.port }}"}
    - {name: SPECGOV_STORE__PATH, value: /var/lib/specgov/state.db}
    - {name: SPECGOV_FLEET__FILE, value: /etc/specgov/fleet/override.json}
    - {name: SPECGOV_LOG__FORMAT, value: json}
    - name: POD_NAMESPACE
      valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    - {name: SPECGOV_LEASE__HOLDER, value: $(POD_NAMESPACE)/$(POD_NAME)}
    {{- range $name, $value := .Values.sidecar.settings }}
    - {name: {{ $name }}, value: {{ $value | quote }}}
    {{- end }}
  ports:
    - {name: specgov, containerPort: {{ .Values.sidecar.port }}}
  # Its own web server only: SGLang starts after this probe has passed.
  startupProbe:
    httpGet: {path: /healthz, port: specgov}
    periodSeconds: 1
    failureThreshold: 60
  # Stays true while SGLang is away.
  readinessProbe:
    httpGet: {path: /readyz, port: specgov}
    periodSeconds: 10
    timeoutSeconds: 3
  # The sidecar's own loop turns.
  livenessProbe:
    httpGet: {path: /healthz, port: specgov}
    periodSeconds: 10
    timeoutSeconds: 3
    failureThreshold: 6
  volumeMounts:
    - {name: specgov-data, mountPath: /var/lib/specgov}
    - {name: specgov-fleet, mountPath: /etc/specgov/fleet, readOnly: true}
    - {name: specgov-secret, mountPath: /etc/specgov/secret, readOnly: true}
  resources:
    {{- toYaml .Values.sidecar.resources | nindent 4 }}
  securityContext:
    {{- include "specgov.security" . | nindent 4 }}
{{- end }}

{{/* For your own SGLang container. */}}
{{- define "specgov.engineEnv" -}}
- {name: PYTHONPATH, value: /opt/specgov-hooks}
- {name: SPECGOV_FALLBACK, value: {{ .Values.engine.fallback | quote }}}
{{- end }}

{{- define "specgov.engineVolumeMounts" -}}
- {name: specgov-hooks, mountPath: /opt/specgov-hooks, readOnly: true}
{{- end }}

{{/* For your own pod template. */}}
{{- define "specgov.volumes" -}}
- name: specgov-hooks
  emptyDir: {sizeLimit: 16Mi}
- name: specgov-data
  emptyDir: {sizeLimit: {{ .Values.sidecar.dataSize }}}
- name: specgov-fleet
  configMap: {name: {{ include "specgov.name" . }}-fleet, optional: true}
- name: specgov-secret
  secret: {secretName: {{ include "specgov.secret" . }}}
{{- end }}
