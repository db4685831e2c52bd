package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/client"
)

// A deployment has its tiers in processes of their own. What is measured is what proxies and
// store nodes take together; the router has no part in sending and receiving.

// deployments are those that are measured, each beside the standalone server of its run.
var deployments = []deployment{{proxies: 1, stores: 1}, {proxies: 2, stores: 2}}

type deployment struct{ proxies, stores int }

func (d deployment) String() string {
	if d.proxies == 1 {
		return "1 proxy, 1 store"
	}
	return fmt.Sprintf("%d proxies, %d stores", d.proxies, d.stores)
}

// row is a row of the standalone server, of the deployment.
func (d deployment) row(row string) string { return row + ", " + d.String() }

// tierRows are the rows of deployments in their order: of each those that the no-op server
// has.
func tierRows() (names []string) {
	for _, d := range deployments {
		for _, row := range noopRows {
			names = append(names, d.row(row))
		}
	}
	return names
}

// standaloneRow returns the row of the standalone server that a row of a deployment is held
// against.
func standaloneRow(name string) (row string, ok bool) {
	for _, d := range deployments {
		if row, ok := strings.CutSuffix(name, d.row("")); ok {
			return row, true
		}
	}
	return "", false
}

// startDeployment starts a router, store nodes and proxies.
func startDeployment(ctx context.Context, o options, d deployment) (*server, error) {
	return start("perigee, "+d.String(), o, func(s *server) error {
		if err := s.run(ctx, s.perigee(o, "router", "router", "--listen", "127.0.0.1:0"), true); err != nil {
			return err
		}
		router := s.parts[0].at.Tiers
		for i := range d.stores {
			name := fmt.Sprint("store-", i)
			if err := s.run(ctx, s.perigee(o, "store", name, "--name", name, "--router", router, "--listen", "127.0.0.1:0", "--flush", o.Flush), false); err != nil {
				return err
			}
		}
		for i := range d.proxies {
			name := fmt.Sprint("proxy-", i)
			if err := s.run(ctx, s.perigee(o, "proxy", name, "--name", name, "--router", router, "--grpc-listen", "127.0.0.1:0"), false); err != nil {
				return err
			}
		}
		return s.awaitShards(ctx, d.stores)
	})
}

// placed bounds the wait until the router has heard of all store nodes.
const placed = 20 * time.Second

// awaitShards waits until new topics are placed on so many shards.
func (s *server) awaitShards(ctx context.Context, shards int) error {
	ctx, cancel := context.WithTimeout(ctx, placed)
	defer cancel()
	for _, p := range s.parts {
		if p.at.GRPC == "" {
			continue
		}
		conn, err := client.Dial(client.Options{Endpoint: p.at.GRPC, Version: "5.1.4"})
		if err != nil {
			return err
		}
		err = awaitPlacement(ctx, adminpb.NewAdminServiceClient(conn), shards)
		conn.Close()
		return err
	}
	return nil
}

func awaitPlacement(ctx context.Context, admin adminpb.AdminServiceClient, shards int) error {
	for i := 0; ; i++ {
		name := fmt.Sprint("placed-", i)
		resp, err := admin.CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: name})
		if err == nil {
			_, err = admin.DeleteTopic(ctx, &adminpb.DeleteTopicRequest{Name: name})
		}
		if err == nil && len(resp.GetTopic().GetShards()) == shards {
			return nil
		}
		if pause(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("topics are placed on %d of %d shards: %w", len(resp.GetTopic().GetShards()), shards, err)
		}
	}
}

// measureDeployments measures what the no-op server was measured with.
func measureDeployments(ctx context.Context, o options, into results) error {
	for _, d := range deployments {
		if err := withServer(func() (*server, error) { return startDeployment(ctx, o, d) }, func(s *server) error {
			of := results{}
			if err := measureAll(ctx, s, o, of); err != nil {
				return err
			}
			for row, measures := range of {
				into[d.row(row)] = append(into[d.row(row)], measures...)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}
