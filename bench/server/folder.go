package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Folders have a file that is locked as long as their owner runs.
const (
	folderPrefix = "perigee-peers-"
	lockName     = "owner"
)

// folder is the folder of a server.
type folder struct {
	path string
	lock *os.File
}

func newFolder() (folder, error) {
	path, err := os.MkdirTemp("", folderPrefix)
	if err != nil {
		return folder{}, err
	}
	lock, err := os.Create(filepath.Join(path, lockName))
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		return folder{}, errors.Join(err, os.RemoveAll(path))
	}
	return folder{path, lock}, nil
}

// removeTries is how often a folder is removed in which a process that is being killed
// may still make files.
const (
	removeTries = 20
	removePause = 50 * time.Millisecond
)

// remove removes the folder and lets its lock go.
func (f folder) remove() error {
	if f.path == "" {
		return nil
	}
	err := os.RemoveAll(f.path)
	for i := 0; err != nil && i < removeTries; i++ {
		<-time.NewTimer(removePause).C
		err = os.RemoveAll(f.path)
	}
	return errors.Join(err, f.lock.Close())
}

// Sweep removes the folders of servers whose owner has ended without Stop.
func Sweep() error {
	paths, err := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range paths {
		lock, err := os.Open(filepath.Join(path, lockName))
		if err != nil {
			continue // being made
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			if err := os.RemoveAll(path); err != nil {
				errs = append(errs, fmt.Errorf("folder of an earlier run: %w", err))
			}
		}
		_ = lock.Close() // it was only locked
	}
	return errors.Join(errs...)
}
