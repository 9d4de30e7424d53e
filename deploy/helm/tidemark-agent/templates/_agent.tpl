{{- define "tidemark-agent.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "tidemark-agent.selector" -}}
app.kubernetes.io/name: tidemark-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Of each pod with an agent in it, the broker's own too: by this a PodMonitor finds it. */}}
{{- define "tidemark-agent.podLabel" -}}
tidemark/agent: {{ include "tidemark-agent.name" . }}
{{- end }}

{{- define "tidemark-agent.labels" -}}
{{ include "tidemark-agent.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "tidemark-agent.serviceAccount" -}}
{{- default (ternary (include "tidemark-agent.name" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end }}

{{/* The agent's file. It listens on the pod's address only where metrics are scraped: probes ask it inside the container. */}}
{{- define "tidemark-agent.config" -}}
{{- $http := dict "host" (ternary "0.0.0.0" "127.0.0.1" .Values.metrics.enabled) "port" .Values.http.port -}}
{{- $source := dict "broker" (dict "properties" "/etc/tidemark/server.properties") -}}
{{- if eq .Values.mode "fetch" -}}
{{- $source = dict "fetch" (include "tidemark-agent.fetch" . | fromYaml) -}}
{{- end -}}
{{- $log := dict "format" "json" -}}
{{- mergeOverwrite (dict "log" $log) $source (deepCopy .Values.config) (dict "http" $http "state_dir" "/var/lib/tidemark") | toYaml -}}
{{- end }}

{{/* A fifth of the volume stays for the state, for the file system, and for what is under way when the spool is full. */}}
{{- define "tidemark-agent.fetch" -}}
{{- range list "bootstrap" "client" "lease" "slot" "slots" "spool" "spool_max" -}}
{{- if hasKey (default dict $.Values.config.fetch) . -}}
{{- fail (printf "config.fetch.%s: the chart sets it from its own section fetch, and client from the Secret fetch.clientSecret" .) -}}
{{- end -}}
{{- end -}}
{{- $port := .Values.networkPolicy.brokerPort | toString -}}
{{- if and .Values.networkPolicy.enabled (not (regexMatch (printf ":%s(,|$)" $port) .Values.fetch.bootstrap)) -}}
{{- fail (printf "networkPolicy.brokerPort: the network policy allows port %s only, which no address of fetch.bootstrap has" $port) -}}
{{- end -}}
{{- $size := .Values.fetch.spool.size -}}
{{- $gibibytes := mul (regexFind "[0-9]+" $size) (ternary 1024 1 (hasSuffix "Ti" $size)) -}}
bootstrap: {{ .Values.fetch.bootstrap | quote }}
slots: {{ .Values.fetch.slots }}
{{- with .Values.fetch.lease }}
lease: {{ . }}
{{- end }}
spool: /var/lib/tidemark/spool
spool_max: {{ div (mul $gibibytes 1024 4) 5 }}MiB
{{- end }}

{{/* A container that may do nothing but read the data, and write its state and the store. */}}
{{- define "tidemark-agent.container" -}}
{{- $hold := default dict .Values.config.hold -}}
name: tidemark-agent
image: {{ required "image.repository: where is the image of docker/agent.Dockerfile?" .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- with .Values.image.digest }}@{{ . }}{{ end }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [tidemark-agent, run, --config, /etc/tidemark/agent.yaml]
env:
  {{- if eq .Values.mode "daemonset" }}
  - name: NODE_IP
    valueFrom: {fieldRef: {fieldPath: status.hostIP}}
  {{- end }}
  - name: PYTHONUNBUFFERED
    value: "1"
  {{- if eq .Values.mode "fetch" }}
  - name: TIDEMARK_AGENT__FETCH__SLOT
    valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
  {{- with .Values.fetch.clientSecret }}
  - name: TIDEMARK_AGENT__FETCH__CLIENT
    valueFrom: {secretKeyRef: {name: {{ . }}, key: client.yaml}}
  {{- end }}
  {{- else }}
  {{- with .Values.broker.bootstrap }}
  - name: TIDEMARK_AGENT__BROKER__BOOTSTRAP
    value: {{ . | quote }}
  {{- end }}
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.credentials.existingSecret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- if .Values.metrics.enabled }}
ports:
  - {name: tidemark, containerPort: {{ .Values.http.port }}, protocol: TCP}
{{- end }}
{{- if and (eq .Values.mode "fetch") .Values.fetch.lease }}
# A standby serves nothing before it has the lease. A day of waiting ends with a restart, which makes no difference.
startupProbe:
  exec: {command: {{ include "tidemark-agent.probe" (list . "/-/alive") }}}
  periodSeconds: 5
  timeoutSeconds: 30
  failureThreshold: 17280
{{- end }}
# Not /-/healthy: a restart because of the store or the broker repairs nothing, and lets go of what descriptors hold.
livenessProbe:
  exec: {command: {{ include "tidemark-agent.probe" (list . "/-/alive") }}}
  periodSeconds: 60
  timeoutSeconds: 30
  failureThreshold: 5
resources:
  {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .Values.user }}
  runAsGroup: {{ .Values.group }}
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  privileged: false
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
volumeMounts:
  - {name: tidemark-config, mountPath: /etc/tidemark, readOnly: true}
  - {name: tidemark-state, mountPath: /var/lib/tidemark}
  - {name: tidemark-tmp, mountPath: /tmp}
  {{- if eq .Values.mode "fetch" }}
  {{- if .Values.fetch.clientSecret }}
  - {name: tidemark-client, mountPath: /etc/tidemark-client, readOnly: true}
  {{- end }}
  {{- else }}
  # A hard link needs one writable mount for the links and for what they link to.
  - {name: {{ include "tidemark-agent.dataVolume" . }}, mountPath: {{ .Values.data.mountPath }}, readOnly: {{ empty $hold.links }}}
  {{- end }}
{{- end }}

{{- define "tidemark-agent.probe" -}}
{{- $port := (index . 0).Values.http.port -}}
{{- list "python" "-c" (printf "import urllib.request as u; u.urlopen('http://127.0.0.1:%d%s', timeout=20)" (int $port) (index . 1)) | toJson -}}
{{- end }}

{{- define "tidemark-agent.dataVolume" -}}
{{- ternary .Values.data.volume "kafka-data" (eq .Values.mode "sidecar") -}}
{{- end }}

{{/* The volumes that the container needs beside the one with the data. */}}
{{- define "tidemark-agent.volumes" -}}
- name: tidemark-config
  configMap: {name: {{ include "tidemark-agent.name" . }}}
- name: tidemark-tmp
  emptyDir: {sizeLimit: 64Mi}
{{- if ne .Values.mode "fetch" }}
- name: tidemark-state
  {{- if and .Values.state.hostPath (eq .Values.mode "daemonset") }}
  hostPath: {path: {{ .Values.state.hostPath }}, type: Directory}
  {{- else }}
  emptyDir: {sizeLimit: 64Mi}
  {{- end }}
{{- else }}
{{- if .Values.fetch.spool.emptyDir }}
- name: tidemark-state
  emptyDir: {sizeLimit: {{ .Values.fetch.spool.size }}}
{{- end }}
{{- with .Values.fetch.clientSecret }}
- name: tidemark-client
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- end }}
