package proxy

// Stats is what a server holds at the moment, and has done since it was made.
type Stats struct {
	Sessions int    // clients that have given signs of life
	Streams  int    // Telemetry calls under way
	Renewing int    // leases that are kept alive
	Renewed  uint64 // renewals that the store has carried out
}

// Stats returns the counters. It may be called at any time.
func (s *Server) Stats() Stats {
	return Stats{
		Sessions: s.sessions.Len(), Streams: int(s.streams.open.Load()),
		Renewing: s.renewals.len(), Renewed: s.renewals.renewed.Load(),
	}
}
