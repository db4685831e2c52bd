// Package scaletest proves that cost follows what is live and what is asked, not
// what has piled up: backlogs, leases, waiting receives, queues, topics, history.
//
// Its tests run with small numbers wherever tests run. `make scale` runs them
// with large ones and prints what it measures. Nothing imports this package.
package scaletest
