package main

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/node"
)

// serverCommands returns the commands that run a tier, or all of them.
func (a *app) serverCommands() []*cobra.Command {
	commands := []*cobra.Command{
		a.serverCommand(config.Standalone, "Run a whole server in one process", "Run a whole server in one process."),
		a.serverCommand(config.Router, "Run a router of a deployment in several processes",
			"Run a router: it knows the topics, the groups and who else there is. Proxies and store\n"+
				"nodes go on with what they know while it is away."),
		a.serverCommand(config.Store, "Run a store node of a deployment in several processes",
			"Run a store node: it owns the messages of its shard, and registers with the routers."),
		a.serverCommand(config.Proxy, "Run a proxy of a deployment in several processes",
			"Run a proxy: it serves clients, and asks the store nodes that the routers know. Any\n"+
				"proxy serves any client."),
	}
	for _, cmd := range commands {
		if cmd.Name() == string(config.Router) {
			cmd.AddCommand(a.importCommand())
		}
	}
	return commands
}

func (a *app) serverCommand(tier config.Tier, short, long string) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: string(tier), Short: short,
		Long: long + " Flags win over environment variables (such as\n" +
			"PERIGEE_LOG_LEVEL for log.level), those over the file, and that over the defaults.",
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(config.Sources{Tier: tier, File: file, Env: a.env, Flags: cmd.Flags()})
			if err != nil {
				return &usageError{err}
			}
			cfg.Version = version
			var printed error
			err = a.serve(cmd.Context(), cfg, a.logger(cfg.Log), func(info serverInfo) { printed = a.printReady(info, cfg) })
			if node.IsDamage(err) {
				return fmt.Errorf("%w\n%s check --data-dir %s shows all that is wrong, and changes nothing", err, a.program, cfg.DataDir)
			}
			if err != nil {
				return err
			}
			return printed
		},
	}
	cmd.Flags().StringVar(&file, "config", a.getenv("PERIGEE_CONFIG", ""), "configuration `file` (environment: PERIGEE_CONFIG)")
	config.AddFlags(cmd.Flags(), tier)
	return cmd
}

func (a *app) logger(c config.Log) *slog.Logger {
	options := &slog.HandlerOptions{Level: c.Level}
	if c.Format == config.LogJSON {
		return slog.New(slog.NewJSONHandler(a.stderr, options))
	}
	return slog.New(slog.NewTextHandler(a.stderr, options))
}

// printReady says where the server is and what to do next.
func (a *app) printReady(info serverInfo, cfg config.Config) error {
	if folder, err := filepath.Abs(info.DataDir); err == nil {
		info.DataDir = folder
	}
	return a.print(info, func(w io.Writer) {
		if info.GRPCAddr == "" {
			fmt.Fprintf(w, "perigee %s %s is ready\n  data     %s\n  tiers    %s\n  http     %s (/readyz, /metrics)\n",
				cfg.Tier, version, info.DataDir, info.TierAddr, info.HTTPAddr)
			return
		}
		speaks := map[string]string{
			config.TLSPermissive: "TLS and cleartext", config.TLSRequired: "TLS only", config.TLSDisabled: "cleartext only",
		}[cfg.TLS.Mode]
		fmt.Fprintf(w, `perigee %s is ready
  data     %s
  clients  %s (gRPC, %s)%[8]s
  http     %[5]s (/readyz, /metrics)

Create a topic, send a message and receive it:
  %[7]s topic create hello%[6]s
  %[7]s send hello "first message"%[6]s
  %[7]s receive hello --group readers%[6]s
`, version, info.DataDir, info.GRPCAddr, speaks, info.HTTPAddr, endpointHint(info.GRPCAddr, cfg.TLS.Mode), a.program, further(info.Listeners))
	})
}

// further returns a line for each further address.
func further(addresses []string) string {
	var lines strings.Builder
	for _, address := range addresses {
		lines.WriteString("\n           " + address)
	}
	return lines.String()
}

// endpointHint returns the flags that a command on this host needs to find the
// server.
func endpointHint(address, mode string) string {
	hint := ""
	if host, port, err := net.SplitHostPort(address); err == nil {
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = "127.0.0.1"
		}
		if endpoint := net.JoinHostPort(host, port); endpoint != defaultEndpoint {
			hint = " --endpoint " + endpoint
		}
	}
	if mode == config.TLSRequired {
		hint += " --tls --insecure"
	}
	return hint
}
