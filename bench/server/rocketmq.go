package server

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
)

// RocketMQ is Apache RocketMQ 5: a name server, and a proxy with its broker in the same
// process ("local mode").
type RocketMQ struct {
	// Java is the path of java, Classpath the archives that it needs.
	Java      string
	Classpath string
	// Sync says that a send is acknowledged after its fsync.
	Sync bool
	// KV says that the state of deliveries is kept in a key-value store
	// (popConsumerKVServiceEnable) and not in messages.
	KV bool
	// Topics and Groups are there from the start.
	Topics, Groups []string
}

// The sizes of the heaps. The broker's log is mapped and does not count.
const (
	nameServerHeap = "128m"
	brokerHeap     = "1g"
)

// rocketQueues is the number of queues of a topic, which Perigee's topics have too.
const rocketQueues = 8

func (k RocketMQ) processes(s *Server) ([]command, error) {
	// The broker takes a second port, two below its own.
	first, err := ports(7)
	if err != nil {
		return nil, err
	}
	nameServer, broker, replication, proxy, remoting := first, first+3, first+4, first+5, first+6
	s.Endpoint = address(proxy)
	if err := k.metadata(s); err != nil {
		return nil, err
	}
	names, err := s.write(fmt.Sprintf("listenPort=%d\n", nameServer), "conf", "namesrv.conf")
	if err != nil {
		return nil, err
	}
	flush := "ASYNC_FLUSH"
	if k.Sync {
		flush = "SYNC_FLUSH"
	}
	brokerConf, err := s.write(fmt.Sprintf(`brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
brokerIP1=%s
listenPort=%d
haListenPort=%d
storePathRootDir=%s
storePathCommitLog=%s
flushDiskType=%s
diskMaxUsedSpaceRatio=95
popConsumerKVServiceInit=%[7]t
popConsumerKVServiceEnable=%[7]t
`, host, broker, replication, s.path("store"), s.path("store", "commitlog"), flush, k.KV), "conf", "broker.conf")
	if err != nil {
		return nil, err
	}
	proxyConf, err := json.Marshal(map[string]any{
		"rocketMQClusterName": "DefaultCluster", "proxyMode": "LOCAL", "namesrvAddr": address(nameServer),
		"grpcServerPort": proxy, "remotingListenPort": remoting, "localServeAddr": host,
		"enableBatchAck": true,
		// A load that finds nothing more ends sooner.
		"grpcClientConsumerMinLongPollingTimeoutMillis": 200,
	})
	if err != nil {
		return nil, err
	}
	proxyFile, err := s.write(string(proxyConf), "conf", "rmq-proxy.json")
	if err != nil {
		return nil, err
	}
	serving := k.java(s, brokerHeap, "org.apache.rocketmq.proxy.ProxyStartup", "-pc", proxyFile, "-bc", brokerConf)
	return []command{
		{Cmd: k.java(s, nameServerHeap, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", names)},
		{Cmd: serving, when: func() bool { return listens(nameServer) }},
	}, nil
}

func (k RocketMQ) java(s *Server, heap, class string, args ...string) *exec.Cmd {
	cmd := exec.Command(k.Java, append([]string{
		"-Xms" + heap, "-Xmx" + heap, "-XX:+UseG1GC",
		"-Duser.home=" + s.path(), "-Drocketmq.log.dir=" + s.path("logs"),
		// The disk is shared with what else the machine has: how full it is must not matter.
		"-Drocketmq.broker.diskSpaceWarningLevelRatio=0.98", "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.97",
		"--add-exports=java.base/sun.nio.ch=ALL-UNNAMED", "-cp", k.Classpath, class,
	}, args...)...)
	cmd.Env = append(cmd.Environ(), "ROCKETMQ_HOME="+s.path())
	return cmd
}

// metadata writes the topics and groups as the broker keeps them.
func (k RocketMQ) metadata(s *Server) error {
	version := map[string]any{"counter": 1, "stateVersion": 0, "timestamp": 1}
	topics, groups := map[string]any{}, map[string]any{}
	for _, name := range k.Topics {
		topics[name] = map[string]any{
			"topicName": name, "order": false, "perm": 6, "readQueueNums": rocketQueues, "writeQueueNums": rocketQueues,
			"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "attributes": map[string]string{"message.type": "NORMAL"},
		}
	}
	for _, name := range k.Groups {
		groups[name] = map[string]any{
			"groupName": name, "consumeEnable": true, "consumeFromMinEnable": true, "consumeBroadcastEnable": true,
			"retryQueueNums": 1, "retryMaxTimes": 16,
		}
	}
	for file, content := range map[string]any{
		"topics.json":            map[string]any{"dataVersion": version, "topicConfigTable": topics},
		"subscriptionGroup.json": map[string]any{"dataVersion": version, "subscriptionGroupTable": groups},
	} {
		encoded, err := json.Marshal(content)
		if err != nil {
			return err
		}
		if _, err := s.write(string(encoded), filepath.Join("store", "config", file)); err != nil {
			return err
		}
	}
	return nil
}
