package mq

import "time"

// A KeeperID names a proxy for as long as its process lasts. 0 is none.
type KeeperID uint64

// An Adoption takes leases over that another proxy has renewed and renews no more: orphans.
type Adoption struct {
	// Clients are those whose orphans are taken; the proxy hears from them.
	Clients []string
	// Keeper is the proxy that takes them over.
	Keeper KeeperID
	// Invisible is how long they stay leased from now on; above 0.
	Invisible time.Duration
}

// An Adopted is a lease that was taken over, and renewed.
type Adopted struct {
	Client string
	Lease  Lease
	Age    time.Duration // since its delivery
}
