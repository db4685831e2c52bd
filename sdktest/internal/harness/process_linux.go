package harness

import "syscall"

// endWithParent makes a process end with the test that started it, however that
// one ends.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
