package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
)

func (a *app) clusterCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "Show the processes of a deployment", Args: noSubcommand, RunE: showHelp}
	cmd.AddCommand(a.clusterStatus())
	return a.addEndpoint(cmd)
}

// clusterView is how a deployment is printed: as the process that answers sees it.
type clusterView struct {
	AnsweredBy string       `json:"answered_by"`
	Revision   uint64       `json:"revision"`
	Routers    []routerView `json:"routers"`
	Stores     []nodeView   `json:"stores"`
	Shards     []shardView  `json:"shards"`
	Proxies    []nodeView   `json:"proxies"`
	Standalone []nodeView   `json:"standalone,omitempty"`
}

type routerView struct {
	Address  string `json:"address"`
	Followed bool   `json:"followed"`
	Revision uint64 `json:"revision,omitempty"`
	Life     string `json:"life,omitempty"`
	Error    string `json:"error,omitempty"`
}

type nodeView struct {
	Name        string    `json:"name"`
	Address     string    `json:"address,omitempty"`
	Shards      []string  `json:"shards,omitempty"`
	Version     string    `json:"version"`
	Since       time.Time `json:"since"`
	Unreachable string    `json:"unreachable,omitempty"`
}

func viewCluster(resp *adminpb.GetClusterResponse) clusterView {
	v := clusterView{
		AnsweredBy: resp.GetNode(), Revision: resp.GetRevision(),
		Routers: []routerView{}, Stores: []nodeView{}, Proxies: []nodeView{}, Shards: viewShards(resp.GetShards()),
	}
	for _, r := range resp.GetRouters() {
		v.Routers = append(v.Routers, routerView{r.GetAddress(), r.GetFollowed(), r.GetRevision(), r.GetLife(), r.GetError()})
	}
	for _, n := range resp.GetNodes() {
		list := &v.Standalone
		switch n.GetTier() {
		case adminpb.Tier_TIER_STORE:
			list = &v.Stores
		case adminpb.Tier_TIER_PROXY:
			list = &v.Proxies
		}
		*list = append(*list, nodeView{
			n.GetName(), n.GetAddress(), n.GetShards(), n.GetVersion(), n.GetStarted().AsTime().Local(), n.GetUnreachable(),
		})
	}
	return v
}

func (v clusterView) write(w io.Writer) {
	fmt.Fprintf(w, "answered by %s, metadata at revision %d\n", v.AnsweredBy, v.Revision)
	if len(v.Routers) > 0 {
		fmt.Fprintln(w, "\nrouters")
		table(w, "ADDRESS STATE REVISION REASON", v.Routers, func(r routerView) []any {
			return []any{r.Address, r.state(), r.revision(), dash(r.Error)}
		})
	}
	list := func(heading, columns string, nodes []nodeView, row func(nodeView) []any) {
		if len(nodes) > 0 {
			fmt.Fprintln(w, "\n"+heading)
			table(w, columns, nodes, row)
		}
	}
	list("store nodes", "NAME ADDRESS SHARDS VERSION SINCE REACHED REASON", v.Stores, func(n nodeView) []any {
		reached := "yes"
		if n.Unreachable != "" {
			reached = "no"
		}
		return []any{n.Name, n.Address, strings.Join(n.Shards, ","), dash(n.Version), n.since(), reached, dash(n.Unreachable)}
	})
	if len(v.Shards) > 0 {
		fmt.Fprintln(w, "\nshards")
		table(w, shardColumns, v.Shards, shardView.row)
	}
	plain := func(n nodeView) []any { return []any{n.Name, dash(n.Version), n.since()} }
	list("proxies", "NAME VERSION SINCE", v.Proxies, plain)
	list("server in one process", "NAME VERSION SINCE", v.Standalone, plain)
}

func (r routerView) state() string {
	switch {
	case r.Followed:
		return "followed"
	case r.Revision == 0:
		return "silent"
	case r.Error != "":
		return "refused"
	default:
		return "answers"
	}
}

func (r routerView) revision() string {
	if r.Revision == 0 {
		return "-"
	}
	return fmt.Sprint(r.Revision)
}

func (n nodeView) since() string { return n.Since.Format(time.DateTime) }

// unserved returns why the deployment does not serve all that it has, or nil.
func (v clusterView) unserved() error {
	away := map[string]bool{}
	for _, n := range v.Stores {
		away[n.Name] = n.Unreachable != ""
	}
	var errs []error
	for _, s := range v.Shards {
		switch {
		case s.State == "removed":
		case s.Node == "":
			errs = append(errs, fmt.Errorf("shard %s has no store node that is alive", s.Name))
		case away[s.Node]:
			errs = append(errs, fmt.Errorf("shard %s has a store node that this proxy cannot reach", s.Name))
		}
	}
	return errors.Join(errs...)
}

func (a *app) clusterStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show routers, store nodes, shards and proxies, as the proxy that answers sees them", Args: arguments(),
		Long: "Show routers, store nodes, shards and proxies, as the proxy that answers sees them. A router is followed,\n" +
			"answers, is refused as a source, or silent; a store node is reached by this proxy or not. Nodes that are\n" +
			"not alive are not shown. The command exits with 1 when a shard that is not removed has no store node that\n" +
			"is alive and reached.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withCluster(cmd, func(ctx context.Context, cluster adminpb.ClusterServiceClient) error {
				resp, err := call(ctx, method(cluster.GetCluster), &adminpb.GetClusterRequest{})
				if err != nil {
					return err
				}
				v := viewCluster(resp)
				if err := a.print(v, v.write); err != nil {
					return err
				}
				return v.unserved()
			})
		},
	}
}
