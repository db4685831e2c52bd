package proxy

// Stats is what a server holds at the moment, and has done since it was made.
type Stats struct {
	Sessions int    // clients that have given signs of life
	Streams  int    // Telemetry calls under way
	Renewing int    // leases that are kept alive
	Renewed  uint64 // renewals that the store has carried out
	Adopted  uint64 // leases that are renewed in place of another proxy
	// Delivering is how many stored bytes of messages are on their way to consumers,
	// DeliveriesRefused how many receives were refused because there were too many.
	Delivering        int64
	DeliveriesRefused uint64
	// Unordered counts the receives of FIFO topics by groups that are not FIFO.
	Unordered uint64
}

// Stats returns the counters. It may be called at any time.
func (s *Server) Stats() Stats {
	return Stats{
		Sessions: s.sessions.Len(), Streams: s.streams.len(),
		Renewing: s.renewals.len(), Renewed: s.renewals.renewed.Load(), Adopted: s.renewals.adopted.Load(),
		Delivering: s.deliveries.held.Load(), DeliveriesRefused: s.deliveries.refused.Load(),
		Unordered: s.unordered.receives.Load(),
	}
}
