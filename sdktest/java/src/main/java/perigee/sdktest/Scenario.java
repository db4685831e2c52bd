package perigee.sdktest;

import java.util.HashMap;
import java.util.Map;

/** What one scenario does. It throws where the server or the SDK does not do what it should. */
@FunctionalInterface
interface Scenario {
    void run(Context c) throws Exception;

    /** All scenarios by the names of scenarios.json. */
    static Map<String, Scenario> all() {
        Map<String, Scenario> all = new HashMap<>();
        Basics.addTo(all);
        Consuming.addTo(all);
        Ordering.addTo(all);
        Timing.addTo(all);
        Transactions.addTo(all);
        Endings.addTo(all);
        return all;
    }
}
