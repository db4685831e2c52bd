// Package crashtest kills a real server process again and again while clients
// send and consume through gRPC, and then checks from the outside that the
// server has kept what it had answered. The clients use the generated code of the
// protocol and know nothing of how the server works. There are some for each type of
// message: ordinary and delayed ones, half messages, priorities and lite topics; what is
// not answered they send again.
//
// The same is done with the processes of a deployment, a router, store nodes and proxies, which
// are killed one by one: the clients go through two proxies, and acknowledge through any.
//
// Hosts that are far apart, lose packets or are cut off from each other are network namespaces,
// where those are allowed; the test itself carries their packets, or takes their links down.
//
// Beside that it lets clients come and go and looks at what the process keeps of
// them, and kills servers right after deletions.
//
// It has tests only. PERIGEE_BIN names the server's binary, by default one that
// is built for the test; PERIGEE_KILLS says how often it is killed; PERIGEE_CHURN
// how often 200 clients come and go; PERIGEE_SEED
// repeats the plan of an earlier run. The tests of deployments run when
// PERIGEE_DEPLOYMENT is set.
package crashtest
