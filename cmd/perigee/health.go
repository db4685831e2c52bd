package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const healthTimeout = 3 * time.Second

func (a *app) healthCommand() *cobra.Command {
	var address string
	cmd := &cobra.Command{
		Use: "health", Short: "Exit with 0 when a server is ready, for health checks", Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkReady(cmd.Context(), address); err != nil {
				return err
			}
			return a.print(map[string]bool{"ready": true}, func(w io.Writer) { fmt.Fprintln(w, "ready") })
		},
	}
	cmd.Flags().StringVar(&address, "http", "127.0.0.1:8088", "`host:port` of the server's health endpoint")
	return cmd
}

func checkReady(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", http.NoBody)
	if err != nil {
		return usagef("http %q: must be host:port", address)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	reason, _ := io.ReadAll(io.LimitReader(resp.Body, 4096)) // what there is of it
	return fmt.Errorf("not ready: %s: %s", resp.Status, strings.TrimSpace(string(reason)))
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version  string `json:"version"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return a.print(v, func(w io.Writer) { fmt.Fprintf(w, "perigee %s (%s, %s)\n", v.Version, v.Go, v.Platform) })
		},
	}
}
