package proc

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

// Machine is where a measure is from. What cannot be read is "unknown" or 0.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory int64  `json:"memory_bytes"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	Commit string `json:"commit"` // of the repository in the working directory
}

// ThisMachine describes the machine that it runs on.
func ThisMachine() Machine {
	m := Machine{CPU: "unknown", Cores: runtime.NumCPU(), Kernel: "unknown", Go: runtime.Version(), Commit: "unknown"}
	if model := field("/proc/cpuinfo", "model name"); model != "" {
		m.CPU = model
	}
	kib, _ := strconv.ParseInt(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"), 10, 64) // 0 is "unknown"
	m.Memory = kib << 10
	if kernel, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(kernel))
	}
	if commit, err := exec.Command("git", "describe", "--tags", "--always", "--dirty").Output(); err == nil {
		m.Commit = strings.TrimSpace(string(commit))
	}
	return m
}

// field returns the value of the first line "key: value" of a file; "" when there is none.
func field(path, key string) string {
	text, _ := os.ReadFile(path) // what there is
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
